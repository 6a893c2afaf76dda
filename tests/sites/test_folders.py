"""The folders of a server and of a site, as their commands make, read and change them; and the look before a start."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path

import pytest

from fedreel.config import DataConfig, Recipe, read_toml
from fedreel.core.exchange import KINDS
from fedreel.engines.flower.pipe import Frame
from fedreel.engines.flower.workplace import Workplace, for_others
from fedreel.errors import DataError, FedreelError, RecipeError, RunError

pytest.importorskip("cryptography", reason="comes with the extra `flower`")

from fedreel.sites import keys, server, site
from fedreel.sites.server import ServerFolder
from fedreel.sites.site import SiteFolder
from support.tiny import Said, cli

RECIPE = """
system = "recognition"
[task]
name = "recognition"
classes = 2
size = 16
frames = 4
backbone = {{ name = "r3d", width = 2, blocks = [1, 1, 1, 1] }}
[method]
name = "{method}"
[data]
role = "{role}"
"""


def refused(*args: object) -> str:
    """What the user is told, on one line; status 2, nothing on stdout."""
    said = cli(*args)
    assert said.code == 2, said
    assert said.out == ""
    return " ".join(said.err.split())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def check(path: Path) -> list[str]:
    return keys.check_server_certificate(path / "server.crt", path / "server.key", path / "ca.crt")


@pytest.fixture
def made(tmp_path: Path) -> ServerFolder:
    return server.init(tmp_path / "server", ["server.org", "10.0.0.1"], 8123, "127.0.0.1")


@pytest.fixture
def north(tmp_path: Path, data: Path) -> SiteFolder:
    return site.init(tmp_path / "north", "north", {"*": str(data)}, "", "")


# the server's


def test_a_new_server_has_certificates_for_its_hosts_and_keeps_its_keys_to_itself(made: ServerFolder) -> None:
    assert check(made.path) == ["server.org", "10.0.0.1"]
    assert check(made.path / "inner") == ["127.0.0.1", "localhost"]
    assert (made.config.hosts, made.config.port, made.config.listen) == (("server.org", "10.0.0.1"), 8123, "127.0.0.1")
    assert 0 < made.config.link_port < 65536
    private = list(made.path.rglob("*.key"))
    assert len(private) == 4
    assert {mode(p) for p in private} == {0o600}
    assert mode(made.path) == 0o700
    assert (made.path / "ca.crt").read_bytes() != (made.path / "inner" / "ca.crt").read_bytes()


def test_a_server_is_not_made_over_another(made: ServerFolder) -> None:
    before = {p: p.read_bytes() for p in made.path.rglob("*") if p.is_file()}
    with pytest.raises(FedreelError, match="already"):
        server.init(made.path, ["x"], 8000, "0.0.0.0")
    assert {p: p.read_bytes() for p in made.path.rglob("*") if p.is_file()} == before


def test_given_certificates_are_taken_with_their_hosts(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    keys.make_ca(given, "the hospital's CA")
    keys.make_server_certificate(given, ["fl.hospital.org"])
    (given / "server.key").chmod(0o644)
    words = "--cert", given / "server.crt", "--key", given / "server.key", "--ca", given / "ca.crt"
    said = cli("server", "init", tmp_path / "server", *words)
    assert said.code == 0
    assert "fl.hospital.org" in said.out
    assert ServerFolder(tmp_path / "server").config.hosts == ("fl.hospital.org",)
    assert check(tmp_path / "server") == ["fl.hospital.org"]
    assert mode(tmp_path / "server" / "server.key") == 0o600
    assert not (tmp_path / "server" / "ca.key").exists()
    assert "was supplied, not made here" in refused("server", "init", tmp_path / "server", "--renew")
    assert "needs all three" in refused("server", "init", tmp_path / "other", *words[:4])


def test_given_certificates_that_do_not_fit_make_no_server(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        keys.make_ca(tmp_path / name, "CA")
        keys.make_server_certificate(tmp_path / name, ["x"], days=1 if name == "a" else -1)
    words = ["--cert", tmp_path / "a" / "server.crt", "--key", tmp_path / "b" / "server.key", "--ca"]
    assert "do not belong together" in refused("server", "init", tmp_path / "s", *words, tmp_path / "a" / "ca.crt")
    words[3] = tmp_path / "a" / "server.key"
    assert "not signed by this CA" in refused("server", "init", tmp_path / "s", *words, tmp_path / "b" / "ca.crt")
    words[1], words[3] = tmp_path / "b" / "server.crt", tmp_path / "b" / "server.key"
    assert "has expired" in refused("server", "init", tmp_path / "s", *words, tmp_path / "b" / "ca.crt")
    assert not (tmp_path / "s").exists()


def test_renewed_certificates_hold_under_the_ca_that_sites_have(made: ServerFolder) -> None:
    ca, old = (made.path / "ca.crt").read_bytes(), (made.path / "server.crt").read_bytes()
    keys.make_server_certificate(made.path, ["server.org"], days=-1)
    with pytest.raises(FedreelError, match="has expired"):
        check(made.path)
    assert cli("server", "init", made.path, "--renew").code == 0
    assert check(made.path) == ["server.org", "10.0.0.1"]
    assert (made.path / "ca.crt").read_bytes() == ca
    assert (made.path / "server.crt").read_bytes() != old
    assert check(made.path / "inner") == ["127.0.0.1", "localhost"]


def test_a_server_needs_a_name_and_a_possible_port(tmp_path: Path) -> None:
    assert "by which name" in refused("server", "init", tmp_path / "s")
    assert "port is out of range" in refused("server", "init", tmp_path / "s", "--host", "x", "--port", 70000)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("host", ["größe.org", ""])
def test_a_host_that_no_certificate_can_name_is_refused(tmp_path: Path, host: str) -> None:
    assert "cannot be a host" in refused("server", "init", tmp_path / "s", "--host", host)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    "words",
    [("server", "start"), ("server", "expel", "x", "--server"), ("status", "--server"), ("server", "init", "--renew")],
)
def test_where_there_is_no_server_every_command_says_so(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert "there is no server here" in refused(*words, tmp_path)


def public(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    keys.make_site_keys(folder, name)
    return folder / "site.pub"


def test_a_site_is_enrolled_and_expelled(made: ServerFolder, tmp_path: Path) -> None:
    key = public(tmp_path / "a", "north")
    said = cli("server", "enroll", key, "--server", made.path)
    assert said.code == 0
    assert "'north' is enrolled (1 in all)" in said.out
    assert made.sites()["north"]["key"] == keys.read_site_key(key)[0]
    assert not made.sites()["north"]["node"]
    assert cli("server", "enroll", key, "--server", made.path).code == 0
    assert list(made.sites()) == ["north"]
    (made.path / "sites" / "north.json").write_text(json.dumps({"node": "123"}))
    assert made.nodes_of([]) == {"north": "123"}
    assert "did you mean 'north'" in refused("server", "expel", "nort", "--server", made.path)
    assert cli("server", "expel", "north", "--server", made.path).code == 0
    assert made.sites() == {}
    assert list((made.path / "sites").iterdir()) == []


def test_one_name_and_one_key_belong_to_one_site(made: ServerFolder, tmp_path: Path) -> None:
    first, other = public(tmp_path / "a", "north"), public(tmp_path / "b", "north")
    server.enroll(made, first)
    assert "enrolled with another key" in refused("server", "enroll", other, "--server", made.path)
    assert "enrolled with this key" in refused("server", "enroll", first, "--server", made.path, "--name", "west")
    assert cli("server", "enroll", other, "--server", made.path, "--name", "west").code == 0
    assert {name: s["key"] for name, s in made.sites().items()} == {
        "north": keys.read_site_key(first)[0],
        "west": keys.read_site_key(other)[0],
    }


@pytest.mark.parametrize("name", ["../../x", "a/b", ".pub", ""])
def test_no_name_leads_a_key_out_of_its_folder(made: ServerFolder, tmp_path: Path, name: str) -> None:
    key = public(tmp_path / "a", "north")
    if name:
        assert "cannot be a site's name" in refused("server", "enroll", key, "--server", made.path, "--name", name)
    key.write_text(key.read_text().replace("north", name or "x y"))
    assert "cannot be a site's name" in refused("server", "enroll", key, "--server", made.path)
    assert list((made.path / "sites").iterdir()) == []


def test_a_job_needs_sites_that_are_enrolled_and_known(made: ServerFolder, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no site is enrolled"):
        made.nodes_of([])
    for name in ("north", "south"):
        server.enroll(made, public(tmp_path / name, name))
    (made.path / "sites" / "north.json").write_text(json.dumps({"node": "1"}))
    assert made.nodes_of(["north"]) == {"north": "1"}
    with pytest.raises(RunError, match="'south' is not known to the running server"):
        made.nodes_of([])
    with pytest.raises(RunError, match="no site 'sout' is enrolled") as caught:
        made.nodes_of(["sout"])
    assert "south" in caught.value.hint


def test_status_tells_of_server_sites_and_jobs(made: ServerFolder, tmp_path: Path) -> None:
    server.enroll(made, public(tmp_path / "a", "north"))
    made.note_job("run1", tmp_path / "moved-away")
    said = cli("status", "--server", made.path)
    assert said.code == 0
    lines = said.out.splitlines()
    assert "not running, port 8123" in lines[0]
    assert lines[1] == "site     north: enrolled"
    assert "moved-away: not started, or moved elsewhere" in lines[2]
    assert lines[3] == f"Next: fedreel server start {made.path}"


# a site's


def test_a_new_site_has_a_key_a_policy_and_its_data(tmp_path: Path, data: Path) -> None:
    said = cli("site", "init", tmp_path / "north", "--data", data, "--data", "faces=/some/where", "--server", "s:1")
    assert said.code == 0
    opened = SiteFolder.open(tmp_path / "north")
    assert (opened.config.name, opened.config.server) == ("north", "s:1")
    assert opened.config.data == {"*": str(data), "faces": "/some/where"}
    assert keys.read_site_key(opened.path / "site.pub")[1] == "north"
    assert mode(opened.path / "site.key") == 0o600
    assert mode(opened.path) == 0o700
    assert {"raw-samples", "features"} <= set(read_toml(opened.path / "policy.toml")["refuse"])
    kinds = (opened.path / "policy.toml").read_text().splitlines()[1]
    assert kinds == f"# Kinds: {', '.join(KINDS)}"  # all that can be refused


def test_a_site_is_not_made_over_another_and_needs_a_plain_name(north: SiteFolder, tmp_path: Path) -> None:
    before = (north.path / "site.key").read_bytes()
    assert "already" in refused("site", "init", north.path)
    assert (north.path / "site.key").read_bytes() == before
    assert "cannot be a site's name" in refused("site", "init", tmp_path / "Name with spaces")
    assert not (tmp_path / "Name with spaces").exists()
    assert "there is no site here" in refused("site", "check", "--site", tmp_path)


def test_roles_find_their_folders(tmp_path: Path) -> None:
    for name in ("all", "faces", "new"):
        (tmp_path / name).mkdir()
    folders = {"*": str(tmp_path / "all"), "faces": str(tmp_path / "faces"), "gone": str(tmp_path / "gone")}
    made = site.init(tmp_path / "s", "s", folders, "", "")
    assert made.folder_of("faces") == tmp_path / "faces"
    assert made.folder_of("videos") == tmp_path / "all"
    said = SiteFolder.open(made.path, {"faces": str(tmp_path / "new")}, "h:1", "ca.crt")
    assert said.folder_of("faces") == tmp_path / "new"
    assert said.folder_of("videos") == tmp_path / "all"
    assert (said.config.server, said.config.ca) == ("h:1", "ca.crt")
    with pytest.raises(DataError, match="does not exist"):
        made.folder_of("gone")
    alone = site.init(tmp_path / "t", "t", {"faces": str(tmp_path / "faces")}, "", "")
    with pytest.raises(DataError, match="no data for the role 'videos'") as caught:
        alone.folder_of("videos")
    assert "--data videos=FOLDER" in caught.value.hint


def test_a_recipes_data_are_those_of_the_site(north: SiteFolder, data: Path) -> None:
    def here(there: DataConfig) -> DataConfig:
        return north.local(Recipe(task={"name": "recognition"}, method={"name": "fedavg"}, data=there)).data

    found = here(DataConfig(source="/etc", owner="someone", labels=("a", "b")))
    assert (found.source, found.owner, found.labels) == (str(data.resolve()), "north", ("a", "b"))
    with pytest.raises(RecipeError, match="stay divided as they are"):
        here(DataConfig(partition={"name": "dirichlet", "alpha": 1.0}))
    assert here(DataConfig(lists="lists/train.csv")).lists == "lists/train.csv"


@pytest.mark.parametrize(
    ("change", "said"), [("nmae = 'x'", "did you mean 'name'"), ("clients = 'some'", "owners, site"), ("= 5", "TOML")]
)
def test_a_site_file_with_a_mistake_is_named(north: SiteFolder, change: str, said: str) -> None:
    text = (north.path / "site.toml").read_text().replace('clients = "owners"\n', "")
    (north.path / "site.toml").write_text(f"{change}\n{text}")
    told = refused("site", "check", "--site", north.path)
    assert said in told
    assert "site.toml" in told


# the look before a start


def look(north: SiteFolder, method: str = "fedavg", role: str = "videos", *words: object) -> Said:
    (north.path / "job.toml").write_text(RECIPE.format(method=method, role=role))
    return cli("site", "check", north.path / "job.toml", "--site", north.path, *words)


def leaving(said: Said) -> dict[str, str]:
    rows = [line.removeprefix("leaves").strip() for line in said.out.splitlines() if line.startswith("leaves")]
    return dict(row.split(": ", 1) for row in rows)


def test_check_says_who_is_here_and_what_would_leave(north: SiteFolder) -> None:
    said = look(north)
    assert said.code == 0, said
    assert "2 clients here: owner0, owner1" in said.out
    assert "12 clips" in said.out
    leaves = leaving(said)
    assert set(leaves) == {"name", "weights", "samples", "loss", "frames", "times", "metrics on test data"}
    assert "REFUSES" not in said.out
    assert "All is well" in said.out
    assert not north.ledger.exists()
    fewer = leaving(look(north, "fedbn"))["weights"]
    assert fewer != leaves["weights"]
    assert "tensors" in fewer


def test_check_names_what_the_policy_refuses(north: SiteFolder) -> None:
    (north.path / "policy.toml").write_text('refuse = ["loss", "raw-samples"]\n')
    said = look(north)
    assert said.code == 1
    assert [item for item, text in leaving(said).items() if "THE POLICY REFUSES IT" in text] == ["loss"]
    assert "never lets out loss, raw-samples" in said.out
    assert "Not ready" in said.out
    (north.path / "policy.toml").write_text('refuse = ["los"]\n')
    assert "did you mean 'loss'" in refused("site", "check", "--site", north.path)


def test_check_says_what_does_not_fit(north: SiteFolder, data: Path, tmp_path: Path) -> None:
    other = cli("site", "check", "recognition", "--site", north.path)
    assert other.code == 1
    assert "the recipe names no classes" in other.out
    bare = site.init(tmp_path / "bare", "bare", {"faces": str(data)}, "", "")
    assert "no data for the role 'videos'" in look(bare).out
    assert "2 clients here" in look(bare, "fedavg", "faces").out
    nothing = site.init(tmp_path / "nothing", "nothing", {}, "", "")
    said = look(nothing)
    assert said.code == 1
    assert "none yet" in said.out
    assert look(nothing, "fedavg", "videos", "--data", data).code == 0
    (tmp_path / "ca.crt").write_text("")
    away = look(north, "fedavg", "videos", "--server", "127.0.0.1:9", "--ca", tmp_path / "ca.crt")
    assert away.code == 1
    assert "server   NO: the CA certificate cannot be read" in away.out


def test_a_whole_site_can_be_one_client(north: SiteFolder) -> None:
    text = (north.path / "site.toml").read_text().replace('clients = "owners"', 'clients = "site"')
    (north.path / "site.toml").write_text(text)
    said = look(north)
    assert "1 clients here: north" in said.out
    assert said.code == 0


def test_check_finds_a_broken_video(tmp_path: Path, data: Path) -> None:
    own = Path(shutil.copytree(data, tmp_path / "own"))
    (own / "owner0" / "class0" / "0.mp4").write_bytes(b"not a video")
    made = site.init(tmp_path / "s", "s", {"*": str(own)}, "", "")
    said = cli("site", "check", "--site", made.path)
    assert said.code == 1
    assert "owner0/class0/0.mp4" in said.out


def test_what_is_wrong_in_a_sites_index_is_told_without_what_it_says(tmp_path: Path, data: Path) -> None:
    own = Path(shutil.copytree(data, tmp_path / "own"))
    (own / "index.csv").write_text("path,label,owner,split\nowner0/class0/0.mp4,class0,owner0,patient 4711\n")
    made = site.init(tmp_path / "s", "s", {"*": str(own)}, "", "")
    (tmp_path / "job.toml").write_text(RECIPE.format(method="fedavg", role="videos"))
    asked = {"type": "roster", "run": "r", "start": 1, "recipe": read_toml(tmp_path / "job.toml"), "layout": ""}
    told = Workplace(made.worker, "s", for_others, None).answer(Frame(asked)).head
    assert "problem" in told
    assert "4711" not in json.dumps(told)
