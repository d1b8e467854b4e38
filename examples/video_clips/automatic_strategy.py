"""The strategy that fits the machine: one GPU or none: single; 2 to 4: dataparallel; more: distributed.

python examples/video_clips/automatic_strategy.py
"""

from __future__ import annotations

from functools import partial

from clips import create_datasets, create_model, loss_fn, optimizer_of, parse

from drumline.adapters.opus_clip import (
    MultiGPUConfig,
    MultiGPUTrainingManager,
    get_gpu_info,
    launch_distributed_training,
    select_optimal_gpus,
)


def main(small: bool, epochs: int) -> None:
    """Look at the GPUs, choose, train."""
    info = get_gpu_info()
    print(f"{info['count']} GPUs: {', '.join(device['name'] for device in info['devices']) or 'the CPU it is'}")
    print(f"free enough, best first: {select_optimal_gpus(min_memory_gb=8.0)}")
    for count in (1, 2, 4, 8):
        print(f"  {count} GPUs would be {MultiGPUConfig().chosen(count)}")

    config = MultiGPUConfig(strategy="auto", batch_size=32, num_workers=0)
    strategy = config.chosen(info["count"])
    print(f"chosen: {strategy}")
    if strategy == "distributed":
        # It begins with a process a GPU, which make model and data themselves.
        datasets = partial(create_datasets, small)
        for found in launch_distributed_training(0, info["count"], create_model, datasets, config, epochs):
            print(f"epoch {found['epoch']}: loss {found['train_loss']:.3f}, held out {found['val_loss']:.3f}")
        return
    model = create_model()
    train, held_out = create_datasets(small)
    manager = MultiGPUTrainingManager(config)
    trainer = manager.create_trainer(model, train, held_out, optimizer=optimizer_of(model), loss_fn=loss_fn)
    for epoch in range(epochs):
        found = trainer.train_epoch(epoch) | trainer.validate(epoch)
        print(f"epoch {epoch}: loss {found['train_loss']:.3f}, accuracy {found['val_accuracy']:.3f}")
    trainer.cleanup()


if __name__ == "__main__":
    options = parse(__doc__)
    main(options.small, options.epochs)
