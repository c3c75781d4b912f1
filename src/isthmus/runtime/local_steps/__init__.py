"""Local steps: regions train alone and agree now and then."""
