"""Moment retrieval: when does the video show what a sentence says?"""
