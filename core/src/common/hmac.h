// SHA-256 (FIPS 180-4) and HMAC (RFC 2104), for proofs of the job's secret.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace smdp {

using Digest = std::array<std::byte, 32>;

Digest sha256(std::string_view message);
Digest hmac_sha256(std::string_view key, std::string_view message);

// Compares in constant time.
bool equal_digests(const Digest& a, const Digest& b);

// Returns random bytes from the kernel. Throws Error if it returns none.
std::string random_bytes(std::size_t count);
std::string to_hex(std::string_view bytes);

}  // namespace smdp
