// Visibility of the public C++ API: everything else in libsmdp is hidden.
#pragma once

#define SMDP_API __attribute__((visibility("default")))
// For what a public class keeps to itself.
#define SMDP_HIDDEN __attribute__((visibility("hidden")))
