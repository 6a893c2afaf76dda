"""What tests share: toy tasks, tiny data, planted truths, sites on loopback."""
