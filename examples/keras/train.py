"""Train a small convolutional net with Keras on scikit-learn's digits."""

import time

import keras
import tensorflow
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

EPOCHS = 12
BATCH = 64


def build() -> keras.Model:
    """Return an untrained net, which takes images of 8 by 8 pixels."""
    net = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    net.compile(
        keras.optimizers.Adam(2e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return net


def main() -> int:
    """Train; return 1 if the net did not learn."""
    keras.utils.set_random_seed(0)
    digits = load_digits()
    images, test_images, labels, test_labels = train_test_split(
        digits.data.astype("float32").reshape(-1, 8, 8, 1) / 16,
        digits.target,
        test_size=0.2,
        random_state=0,
    )
    net = build()
    before, _ = net.evaluate(test_images, test_labels, verbose=0)
    started = time.perf_counter()
    net.fit(images, labels, batch_size=BATCH, epochs=EPOCHS, verbose=0)
    after, accuracy = net.evaluate(test_images, test_labels, verbose=0)
    device = "gpu" if tensorflow.config.list_physical_devices("GPU") else "cpu"
    seconds = time.perf_counter() - started
    print(f"device {device}, tensorflow {tensorflow.__version__}, {seconds:.1f} s")
    print(f"loss {before:.3f} -> {after:.3f}, accuracy {accuracy:.3f}")
    return 0 if after < before and accuracy > 0.9 else 1


if __name__ == "__main__":
    raise SystemExit(main())
