// Sums a number of each rank over all ranks: smdp run -n 2 build/all_reduce
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>

#include "smdp/group.h"
#include "smdp/tcp_store.h"

namespace {

// What `smdp run` tells its ranks. Other launchers have variables of their own.
std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) throw std::runtime_error(std::string(name) + " is not set: start this by smdp run");
  return value;
}

}  // namespace

int main() {
  try {
    const int rank = std::stoi(variable("SMDP_RANK"));
    const int size = std::stoi(variable("SMDP_WORLD_SIZE"));
    const auto port = static_cast<std::uint16_t>(std::stoi(variable("SMDP_MASTER_PORT")));
    smdp::GroupOptions options;
    options.secret = variable("SMDP_SECRET");
    const auto store = std::make_shared<smdp::TcpStore>(variable("SMDP_MASTER_ADDR"), port, rank == 0, options.secret,
                                                        std::chrono::minutes(1));
    smdp::Group group(store, rank, size, options);
    float value = static_cast<float>(rank + 1);
    group.all_reduce(&value, &value, std::array<std::int64_t, 1>{1}, smdp::DType::kFloat32, smdp::ReduceOp::kSum);
    std::printf("rank %d of %d: the sum is %g\n", rank, size, value);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
