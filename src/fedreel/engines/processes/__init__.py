"""The engine `processes`: several worker processes on this machine, one for each core or some for each GPU."""
