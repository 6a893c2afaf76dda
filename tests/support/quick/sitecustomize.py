"""For processes that tests start: what they import stays, so it need not be searched for garbage again and again. And
sites say every few seconds that they are alive, so that one that was killed is soon missed: by the SuperLink, and its
executor by the SuperNode. Flower lets both be silent for a minute."""

import gc
import sys

gc.set_threshold(20_000)

if any(f"fedreel.sites.{part}" in " ".join(sys.orig_argv[:3]) for part in ("supernode", "executor")):
    from flwr.common import constant

    constant.HEARTBEAT_DEFAULT_INTERVAL = constant.HEARTBEAT_MIN_INTERVAL
