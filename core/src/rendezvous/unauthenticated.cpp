#include "rendezvous/unauthenticated.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>

namespace smdp {
namespace {

constexpr std::size_t kPart = 8;  // they may use one in eight descriptors
constexpr std::size_t kFewest = 16;
constexpr std::size_t kMost = 1024;  // because each also has a thread
constexpr std::chrono::seconds kSilence{1};

bool is_unauthenticated(const Session& session) { return !session.is_authenticated && !session.ended.load(); }

}  // namespace

std::size_t most_unauthenticated() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kFewest;
  return std::clamp<std::size_t>(limit.rlim_cur / kPart, kFewest, kMost);
}

bool has_room_for_unauthenticated(std::list<Session>& sessions, std::size_t most) {
  if (static_cast<std::size_t>(std::count_if(sessions.begin(), sessions.end(), is_unauthenticated)) < most) return true;
  const auto now = std::chrono::steady_clock::now();
  for (const Session& session : sessions) {
    if (is_unauthenticated(session) && now - session.begin > kSilence) ::shutdown(session.socket.get(), SHUT_RDWR);
  }
  return false;
}

void forget_ended(std::list<Session>& sessions) {
  for (auto it = sessions.begin(); it != sessions.end();) {
    if (!it->ended.load()) {
      ++it;
      continue;
    }
    it->thread.join();
    it = sessions.erase(it);
  }
}

}  // namespace smdp
