"""What users write behind `smdp`: one file per command, with its options and how it reports wrong ones."""
