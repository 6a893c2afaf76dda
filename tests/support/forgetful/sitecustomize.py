"""On the path of a site's processes: its SuperNode forgets the first reply that it should push, as Flower's does where
the SuperLink answers with an error."""

import runpy
import sys
from pathlib import Path
from typing import Any

runpy.run_path(str(Path(__file__).parent.parent / "quick" / "sitecustomize.py"))  # Python looks for one of them only

if "fedreel.sites.supernode" in " ".join(sys.orig_argv[:3]):
    from flwr.supernode import start_client_internal as supernode

    _push = supernode._push_messages
    _forgotten: list[str] = []

    def _forget(*, state: Any, object_store: Any, send: Any, push_object: Any) -> None:
        def fail(message: Any, *rest: Any) -> Any:
            if _forgotten:
                return send(message, *rest)
            _forgotten.append(message.metadata.message_id)
            raise RuntimeError("forgotten for a test")

        _push(state=state, object_store=object_store, send=fail, push_object=push_object)

    supernode._push_messages = _forget
