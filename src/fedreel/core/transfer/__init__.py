"""Few bytes: in which form models travel between clients and server, by the recipe's [transfer] section."""
