"""The nets fit together."""

import torch

import train


def test_the_decoder_makes_as_many_pixels_as_the_encoder_takes() -> None:
    encoder, decoder = train.nets()
    assert decoder(encoder(torch.zeros(2, 64))).shape == (2, 64)
