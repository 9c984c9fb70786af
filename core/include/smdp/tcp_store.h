// A store served by one rank over TCP.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "smdp/export.h"
#include "smdp/store.h"

namespace smdp {

// Rank 0 constructs it with is_server, the others without; rank 0 uses it as well. The server lives as long as the
// object.
class SMDP_API TcpStore final : public Store {
 public:
  // port: 0 takes a free port (server only). secret: every connection must prove it; an empty secret counts as well.
  // interrupted: polled during every wait for the server; when it returns true, the wait ends with ClosedError. Throws
  // ConfigError if the port is taken, and TimeoutError if the server does not answer in time.
  TcpStore(const std::string& host, std::uint16_t port, bool is_server, std::string secret,
           std::chrono::milliseconds timeout, std::function<bool()> interrupted = {});
  ~TcpStore() override;

  std::uint16_t port() const;

  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  std::string get_unless(const std::string& key, std::chrono::milliseconds timeout,
                         const std::function<bool()>& interrupted) override;
  bool check(const std::string& key) override;
  void check_owner() const override;

 private:
  class SMDP_HIDDEN Server;
  class Client;
  Store* own_values();  // null on ranks that do not serve the store

  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
  std::function<bool()> interrupted_;
  std::uint16_t port_;
  std::uint64_t generation_;  // of forks: in a child the object is inert
};

}  // namespace smdp
