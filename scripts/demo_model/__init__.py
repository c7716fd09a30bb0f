"""How the weights that the package ships are made: rows, training, calibration, and what goes into the package."""
