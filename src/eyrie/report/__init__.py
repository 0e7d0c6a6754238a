"""What a run came to, for people: the report page, the drafter's card, the table on the terminal."""
