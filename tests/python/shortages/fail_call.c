// Preloaded into ranks: makes the n-th call of one function that libsmdp makes fail with an errno of choice, and counts
// the calls of all. Calls of Python, NumPy and other libraries go through untouched.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <ifaddrs.h>
#include <link.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CALLS(X)                                                                                                  \
  X(accept4) X(aligned_alloc) X(bind) X(calloc) X(connect) X(epoll_create1) X(epoll_ctl) X(eventfd) X(fallocate)   \
  X(fopen) X(ftruncate) X(getaddrinfo) X(getifaddrs) X(listen) X(memfd_create) X(mmap) X(open) X(poll)             \
  X(pthread_create) X(recv) X(recvmsg) X(send) X(sendmsg) X(setsockopt) X(socket) X(syscall)

#define NAME(call) #call,
#define INDEX(call) k_##call,
static const char* const names[] = {CALLS(NAME)};
enum { CALLS(INDEX) kCalls };

static atomic_long counts[kCalls];
static atomic_int armed = -1;  // which call is to fail
static long armed_nth;
static int armed_error;
static atomic_int has_failed;

struct Range {
  const char* library;
  char* begin;
  char* end;
};

static int find_range(struct dl_phdr_info* info, size_t size, void* data) {
  struct Range* range = data;
  (void)size;
  if (strstr(info->dlpi_name, range->library) == NULL) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* part = &info->dlpi_phdr[i];
    if (part->p_type != PT_LOAD || (part->p_flags & PF_X) == 0) continue;
    range->begin = (char*)info->dlpi_addr + part->p_vaddr;
    range->end = range->begin + part->p_memsz;
  }
  return 1;
}

static struct Range smdp = {"/libsmdp", NULL, NULL};
static struct Range standard = {"/libstdc++", NULL, NULL};  // std::thread and std::ifstream call for libsmdp

// After libsmdp was loaded, and before it is used.
void fail_call_find(void) {
  dl_iterate_phdr(find_range, &smdp);
  dl_iterate_phdr(find_range, &standard);
}

// nth: from 1 on; 0: none fails.
void fail_call_arm(const char* call, long nth, int error) {
  for (int i = 0; i < kCalls; ++i) {
    atomic_store(&counts[i], 0);
    if (strcmp(names[i], call) == 0) atomic_store(&armed, i);
  }
  armed_nth = nth;
  armed_error = error;
  atomic_store(&has_failed, 0);
}

int fail_call_has_failed(void) { return atomic_load(&has_failed); }
int fail_call_size(void) { return kCalls; }
const char* fail_call_name(int index) { return names[index]; }
long fail_call_count(int index) { return atomic_load(&counts[index]); }

static int is_within(const struct Range* range, const void* address) {
  return (const char*)address >= range->begin && (const char*)address < range->end;
}

// Whether this call is the one to fail.
static int must_fail(int call, const void* caller, int is_shared) {
  if (!is_within(&smdp, caller) && !(is_shared && is_within(&standard, caller))) return 0;
  const long nth = atomic_fetch_add(&counts[call], 1) + 1;
  if (atomic_load(&armed) != call || nth != armed_nth) return 0;
  atomic_store(&has_failed, 1);
  errno = armed_error;
  return 1;
}

#define CALLER __builtin_return_address(0)
#define REAL(call)                                     \
  static __typeof__(&call) real;                       \
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, #call)

#define WRAP(type, call, failure, parameters, arguments)      \
  type call parameters {                                      \
    REAL(call);                                               \
    return must_fail(k_##call, CALLER, 0) ? failure : real arguments; \
  }

WRAP(int, accept4, -1, (int s, struct sockaddr* a, socklen_t* n, int f), (s, a, n, f))
WRAP(void*, aligned_alloc, NULL, (size_t a, size_t n), (a, n))
WRAP(int, bind, -1, (int s, const struct sockaddr* a, socklen_t n), (s, a, n))
WRAP(int, connect, -1, (int s, const struct sockaddr* a, socklen_t n), (s, a, n))
WRAP(int, epoll_create1, -1, (int f), (f))
WRAP(int, fallocate, -1, (int d, int m, off_t b, off_t n), (d, m, b, n))
WRAP(int, ftruncate, -1, (int d, off_t n), (d, n))
WRAP(int, getifaddrs, -1, (struct ifaddrs * *l), (l))
WRAP(int, listen, -1, (int s, int n), (s, n))
WRAP(int, memfd_create, -1, (const char* n, unsigned f), (n, f))
WRAP(void*, mmap, MAP_FAILED, (void* a, size_t n, int p, int f, int d, off_t o), (a, n, p, f, d, o))
WRAP(int, poll, -1, (struct pollfd* l, nfds_t n, int t), (l, n, t))
WRAP(ssize_t, recv, -1, (int s, void* b, size_t n, int f), (s, b, n, f))
WRAP(ssize_t, send, -1, (int s, const void* b, size_t n, int f), (s, b, n, f))
WRAP(ssize_t, sendmsg, -1, (int s, const struct msghdr* m, int f), (s, m, f))
WRAP(int, setsockopt, -1, (int s, int l, int o, const void* v, socklen_t n), (s, l, o, v, n))
WRAP(int, socket, -1, (int d, int t, int p), (d, t, p))

int epoll_ctl(int epoll, int operation, int descriptor, struct epoll_event* event) {
  REAL(epoll_ctl);
  const int takes = operation != EPOLL_CTL_DEL;  // else it cannot lack anything
  return takes && must_fail(k_epoll_ctl, CALLER, 0) ? -1 : real(epoll, operation, descriptor, event);
}

int eventfd(unsigned value, int flags) {
  return must_fail(k_eventfd, CALLER, 0) ? -1 : (int)syscall(SYS_eventfd2, value, flags);
}

FILE* fopen(const char* path, const char* mode) {
  REAL(fopen);
  return must_fail(k_fopen, CALLER, 1) ? NULL : real(path, mode);
}

FILE* fopen64(const char* path, const char* mode) {
  REAL(fopen64);
  return must_fail(k_fopen, CALLER, 1) ? NULL : real(path, mode);
}

int open(const char* path, int flags, ...) {
  REAL(open);
  va_list rest;
  va_start(rest, flags);
  const int mode = va_arg(rest, int);
  va_end(rest);
  return must_fail(k_open, CALLER, 0) ? -1 : real(path, flags, mode);
}

int getaddrinfo(const char* host, const char* service, const struct addrinfo* hints, struct addrinfo** found) {
  REAL(getaddrinfo);
  return must_fail(k_getaddrinfo, CALLER, 0) ? EAI_SYSTEM : real(host, service, hints, found);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*), void* argument) {
  REAL(pthread_create);
  return must_fail(k_pthread_create, CALLER, 1) ? armed_error : real(thread, attributes, body, argument);
}

// What has no room for descriptors gets the message without them.
ssize_t recvmsg(int socket, struct msghdr* message, int flags) {
  REAL(recvmsg);
  if (!must_fail(k_recvmsg, CALLER, 0)) return real(socket, message, flags);
  if (armed_error != EMFILE) return -1;
  const ssize_t got = real(socket, message, flags);
  for (struct cmsghdr* part = CMSG_FIRSTHDR(message); part != NULL; part = CMSG_NXTHDR(message, part)) {
    for (size_t at = CMSG_LEN(0); at < part->cmsg_len; at += sizeof(int)) close(*(int*)((char*)part + at));
  }
  message->msg_controllen = 0;
  message->msg_flags |= MSG_CTRUNC;
  return got;
}

// dlsym() itself may need memory: what this file wraps of it must not ask dlsym().
extern void* __libc_calloc(size_t count, size_t size);
void* calloc(size_t count, size_t size) {
  return must_fail(k_calloc, CALLER, 0) ? NULL : __libc_calloc(count, size);
}

long syscall(long number, ...) {
  static long (*real)(long, ...);
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "syscall");
  va_list rest;
  va_start(rest, number);
  const long a = va_arg(rest, long), b = va_arg(rest, long), c = va_arg(rest, long);
  const long d = va_arg(rest, long), e = va_arg(rest, long), f = va_arg(rest, long);
  va_end(rest);
  return must_fail(k_syscall, CALLER, 0) ? -1 : real(number, a, b, c, d, e, f);
}
