#!/bin/bash
# train_multi_gpu.sh

export CUDA_VISIBLE_DEVICES=0,1,2,3
accelerate launch --num_processes 4 train.py
