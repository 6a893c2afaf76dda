"""From video to skeletons: BlazePose's detector and landmarks, followed over time and named as a Kinect names joints."""
