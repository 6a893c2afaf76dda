"""Real sites: keys and certificates, the server that sites call, and the site that keeps its data."""
