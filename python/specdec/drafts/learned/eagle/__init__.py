"""EAGLE and native multi-token prediction (MTP): a layer on the hidden states of the target."""
