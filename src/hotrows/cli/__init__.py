"""The command line: `hotrows prepare | profile | train | evaluate | doctor`."""
