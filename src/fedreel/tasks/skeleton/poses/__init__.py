"""From video to skeletons: BlazePose's detector and landmarks, followed over time, with a Kinect's joints."""
