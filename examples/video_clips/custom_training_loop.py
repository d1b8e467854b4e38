"""A loop of one's own over whole epochs: updates grow from epoch to epoch, the best model is kept.

python examples/video_clips/custom_training_loop.py
"""

from __future__ import annotations

from clips import create_datasets, create_model, loss_fn, optimizer_of, parse

from drumline.adapters.opus_clip import MultiGPUConfig, MultiGPUTrainingManager

BEST = "runs/best_model.pth"


def main(small: bool, epochs: int) -> None:
    """Train, keep the best, go back to it."""
    model = create_model()
    optimizer = optimizer_of(model)
    config = MultiGPUConfig(strategy="auto", batch_size=32, num_workers=0)
    train, held_out = create_datasets(small)
    manager = MultiGPUTrainingManager(config)
    trainer = manager.create_trainer(model, train, held_out, optimizer=optimizer, loss_fn=loss_fn)
    best_loss = float("inf")
    for epoch in range(epochs):
        train_metrics = trainer.train_epoch(epoch)
        val_metrics = trainer.validate(epoch)
        is_best = val_metrics["val_loss"] < best_loss
        print(
            f"epoch {epoch}: loss {train_metrics['train_loss']:.3f}, held out {val_metrics['val_loss']:.3f}, "
            f"batch {config.batch_size}{', kept' if is_best else ''}"
        )
        if is_best:
            best_loss = val_metrics["val_loss"]
            trainer.save_checkpoint(epoch, BEST)
        config.batch_size *= 2  # larger updates towards the end; the next epoch goes by it
    epoch = trainer.load_checkpoint(BEST)
    print(f"the best is of epoch {epoch}: {trainer.validate(epoch)['val_loss']:.3f} again")
    trainer.cleanup()


if __name__ == "__main__":
    options = parse(__doc__)
    main(options.small, options.epochs)
