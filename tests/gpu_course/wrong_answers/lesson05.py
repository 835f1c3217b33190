"""Further wrong answers to lesson 05, each with what the message must say."""

WRONG = {
    "evaluate": [
        ("never calls the model", lambda model, loader, device: 0.5),
    ],
}
