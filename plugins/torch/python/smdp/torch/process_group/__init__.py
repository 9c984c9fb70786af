"""The backend "smdp" of torch.distributed: groups, calls, works, tensors and GPU copies."""
