"""Ways in which one engine gets weights: files, handed out or sent, directories, broadcasts."""
