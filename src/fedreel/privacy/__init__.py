"""What a run gives away about one client or one example, as a number: accounting, and noise nobody can foresee."""
