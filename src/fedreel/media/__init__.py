"""Video files: frames in, clips out."""
