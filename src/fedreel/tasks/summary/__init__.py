"""Video summarisation: which shots matter?"""
