"""`fedreel ui`: a page to work in. Runs as they happen, new runs from forms, a video to try a model on, data, sites."""
