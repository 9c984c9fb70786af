#include "collectives/overlap.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "smdp/error.h"

namespace smdp {
namespace {

std::uintptr_t begin_of(ConstBytes block) { return reinterpret_cast<std::uintptr_t>(block.data); }
std::uintptr_t end_of(ConstBytes block) { return begin_of(block) + block.size; }

bool is_same(ConstBytes a, ConstBytes b) { return a.data == b.data && a.size == b.size; }

bool share(ConstBytes a, ConstBytes b) {
  return a.size != 0 && b.size != 0 && begin_of(a) < end_of(b) && begin_of(b) < end_of(a);
}

[[noreturn]] void refuse(const Members& members, const char* operation, const char* which, ConstBytes a, ConstBytes b) {
  const std::uintptr_t shared = std::min(end_of(a), end_of(b)) - std::max(begin_of(a), begin_of(b));
  throw InvalidArgument(
      members.prefix() + operation + ": " + which + " of " + std::to_string(a.size) + " and " + std::to_string(b.size) +
      " bytes share " + std::to_string(shared) +
      " bytes of memory, so one would be overwritten before it is read. Pass buffers that do not overlap.");
}

}  // namespace

void check_apart(const Members& members, const char* operation, ConstBytes in, ConstBytes out) {
  if (in.data != out.data && share(in, out)) refuse(members, operation, "input and output", in, out);
}

void check_apart(const Members& members, const char* operation, const std::vector<ConstBytes>& in,
                 std::vector<ConstBytes> out, ConstBytes own) {
  std::erase_if(out, [](ConstBytes block) { return block.size == 0; });
  std::sort(out.begin(), out.end(), [](ConstBytes a, ConstBytes b) { return begin_of(a) < begin_of(b); });
  for (std::size_t i = 1; i < out.size(); ++i) {
    if (share(out[i - 1], out[i]) && !is_same(out[i - 1], out[i])) {
      refuse(members, operation, "two outputs", out[i - 1], out[i]);
    }
  }
  for (const ConstBytes source : in) {
    // Outputs do not overlap, so they are also sorted by their ends.
    auto block = std::upper_bound(out.begin(), out.end(), begin_of(source),
                                  [](std::uintptr_t address, ConstBytes b) { return address < end_of(b); });
    for (; block != out.end() && share(source, *block); ++block) {
      if (!is_same(source, *block) || !is_same(source, own)) {
        refuse(members, operation, "an input and an output", source, *block);
      }
    }
  }
}

}  // namespace smdp
