"""A small training with Keras, with one fault or none: watched_tensorflow.py FAULT."""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf

FAULT = sys.argv[1]


def main() -> None:
    """Train, with `fit` or in a loop of one's own."""
    tf.keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(512, 32))
    labels = inputs[:, :10].argmax(1)
    if FAULT == "float64":
        tf.keras.backend.set_floatx("float64")
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Dense(64, "relu"), layers.Dense(10)])
    criterion = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    rates = {"rate zero": 0.0, "not a number": 1e30}
    optimizer = tf.keras.optimizers.SGD(rates.get(FAULT, 0.05))
    if FAULT == "loop":

        @tf.function
        def step(inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = criterion(labels, model(inputs, training=True))
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        for number in range(100):
            rows = slice(number * 16 % 512, number * 16 % 512 + 16)
            print(f"{float(step(inputs[rows], labels[rows])):.9f}")
        return
    model.compile(optimizer, criterion)
    # Long enough for three looks at the variables on a fast machine, too.
    epochs = 64 if FAULT == "rate zero" else 8
    history = model.fit(
        inputs, labels, batch_size=16, epochs=epochs, verbose=0, validation_data=(inputs, labels)
    )
    print(history.history)


if __name__ == "__main__":
    main()
