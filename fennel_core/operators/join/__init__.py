"""Stream–table join: each left row with the latest right version inside its bounds."""
