"""What measured runs say of estimates: how far off they may be, and by how much here."""
