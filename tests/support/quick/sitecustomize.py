"""For processes that tests start: what they import stays, so it need not be searched for garbage again and again."""

import gc

gc.set_threshold(20_000)
