"""How clients cooperate: one file a method."""
