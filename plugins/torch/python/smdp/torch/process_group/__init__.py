"""The backend "smdp" of torch.distributed: the group, its calls, works, tensors and GPU copies."""
