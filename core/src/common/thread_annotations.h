// Declares which mutex guards what, for clang's -Wthread-safety, which `tox -e core` runs. No effect in other
// compilers.
//
// SMDP_GUARDED_BY(mutex) follows a field. SMDP_REQUIRES(mutex) follows a function that is called with the mutex held,
// SMDP_EXCLUDES(mutex) one that takes it. See common/mutex.h for mutexes that clang can follow.
#pragma once

#if defined(__clang__)
#define SMDP_THREAD_ANNOTATION(attribute) __attribute__((attribute))
#else
#define SMDP_THREAD_ANNOTATION(attribute)
#endif

#define SMDP_CAPABILITY(name) SMDP_THREAD_ANNOTATION(capability(name))
#define SMDP_SCOPED_CAPABILITY SMDP_THREAD_ANNOTATION(scoped_lockable)
#define SMDP_GUARDED_BY(mutex) SMDP_THREAD_ANNOTATION(guarded_by(mutex))
#define SMDP_REQUIRES(...) SMDP_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define SMDP_EXCLUDES(...) SMDP_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define SMDP_ACQUIRED_BEFORE(...) SMDP_THREAD_ANNOTATION(acquired_before(__VA_ARGS__))
#define SMDP_ACQUIRE(...) SMDP_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define SMDP_ACQUIRE_SHARED(...) SMDP_THREAD_ANNOTATION(acquire_shared_capability(__VA_ARGS__))
#define SMDP_RELEASE(...) SMDP_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define SMDP_RELEASE_SHARED(...) SMDP_THREAD_ANNOTATION(release_shared_capability(__VA_ARGS__))
#define SMDP_RELEASE_GENERIC(...) SMDP_THREAD_ANNOTATION(release_generic_capability(__VA_ARGS__))
// For code that clang cannot follow. A comment must say why.
#define SMDP_NO_THREAD_SAFETY_ANALYSIS SMDP_THREAD_ANNOTATION(no_thread_safety_analysis)
