"""Unit constants.  Inside: byte, second, FLOP; GB, GiB, TFLOP/s and ms only at the rim."""

GIB = 1024**3
GB = 1e9
HOUR_S = 3600.0
DAY_S = 86400.0
