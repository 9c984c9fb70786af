// Visibility of symbols: SMDP_API marks the public C++ API; everything else in libsmdp is hidden.
#pragma once

#define SMDP_API __attribute__((visibility("default")))
// For private members of a public class.
#define SMDP_HIDDEN __attribute__((visibility("hidden")))
