"""EAGLE and native heads for multi-token prediction: a layer on the hidden states of the target."""
