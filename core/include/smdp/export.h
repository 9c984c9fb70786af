// Visibility of the public C++ API: everything else in libsmdp is hidden.
#pragma once

#define SMDP_API __attribute__((visibility("default")))
