// Descriptors that a forked child must not keep: a DataLoader worker that holds a dead rank's socket open would hide
// its death. A fork handler closes them in the child.
#pragma once

#include <cstdint>

namespace smdp {

class ForkGuard {
 public:
  // Descriptors from this number on are not guarded.
  static constexpr int kMost = 1 << 16;

  static void add(int descriptor) noexcept;
  static void remove(int descriptor) noexcept;

  // Returns the number of forks between this process and the one that loaded the library.
  static std::uint64_t generation() noexcept;
  static bool in_forked_child(std::uint64_t generation) noexcept { return ForkGuard::generation() != generation; }
};

}  // namespace smdp
