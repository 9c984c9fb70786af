"""`smdistributed.modelparallel.test`: scripts import helpers of SMP's own tests, and seldom call them."""
