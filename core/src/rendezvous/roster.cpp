#include "rendezvous/roster.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "common/cores.h"
#include "common/failure.h"
#include "common/hmac.h"
#include "common/shortage.h"
#include "rendezvous/departure.h"
#include "smdp/error.h"
#include "transport/tcp/socket.h"

namespace smdp {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// First line of the roster: a list of records follows, or the reason why there is none.
constexpr char kGood[] = "roster 6";
constexpr char kBad[] = "failed 6";

std::string encode(const Record& record) {
  std::string text;
  for (const std::string& line :
       {record.host_name, record.host_key, record.local_name, record.master_seen, record.cores, record.user,
        record.user_space, record.doorbell, std::to_string(record.world_rank)}) {
    text += line + '\n';
  }
  for (const std::string& line : record.shared) text += line + '\n';
  return text + encode_rails(record.rails) + '\n';
}

Record decode(std::istream& in) {
  Record record;
  std::string world_rank;
  std::string rails;
  std::vector<std::string*> lines{&record.host_name,   &record.host_key, &record.local_name,
                                  &record.master_seen, &record.cores,    &record.user,
                                  &record.user_space,  &record.doorbell, &world_rank};
  for (std::string& value : record.shared) lines.push_back(&value);
  lines.push_back(&rails);
  for (std::string* line : lines) {
    if (!std::getline(in, *line))
      throw ConfigError(
          "[smdp] the rendezvous store contains a record that smdp did not write. Give every job its own store.");
  }
  std::istringstream(world_rank) >> record.world_rank;
  record.rails = decode_rails(rails);
  return record;
}

constexpr char kNotSet[] = "not set";

// Distinguishes secrets within a group.
std::string fingerprint_of(const std::string& secret, const std::string& group) {
  if (secret.empty()) return kNotSet;
  const Digest digest = hmac_sha256(secret, "fingerprint for " + group);
  return to_hex({reinterpret_cast<const char*>(digest.data()), 4});
}

// Returns the value of kShared[i] for messages, which must not help to guess a secret.
std::string shown(std::size_t i, const std::string& value, const char* hidden) {
  return std::string(kShared[i]) == "SMDP_SECRET" && value != kNotSet ? hidden : value;
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

// Returns the id of this process's namespace of this kind.
std::string namespace_number(const char* kind) {
  struct stat space{};
  ::stat((std::string("/proc/self/ns/") + kind).c_str(), &space);
  return std::to_string(space.st_ino);
}

std::string machine_key() {
  constexpr char kPath[] = "/proc/sys/kernel/random/boot_id";
  std::string boot_id;
  std::ifstream file(kPath);
  if (!file.is_open() && errno != EACCES && errno != EPERM) throw_if_short("open", kPath);  // a sandbox may hide it
  file >> boot_id;
  return boot_id + "/" + namespace_number("net");
}

// Returns text such as "0-3, 7" for ascending numbers, of which there may be thousands.
std::string ranges(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const int first = numbers[i];
    while (i + 1 < numbers.size() && numbers[i + 1] == numbers[i] + 1) ++i;
    text += (text.empty() ? "" : ", ") + std::to_string(first);
    if (numbers[i] != first) text += "-" + std::to_string(numbers[i]);
  }
  return text;
}

std::string key_of(int rank) { return "record/" + std::to_string(rank); }

// Rank 0: waits for all ranks. Returns the records of ranks 1 to size - 1, or describes the missing ranks in `problem`;
// `came` are the others.
std::vector<Record> collect(Store& store, int size, milliseconds timeout, std::vector<int>& came,
                            std::string& problem) {
  const auto deadline = steady_clock::now() + timeout;
  std::vector<Record> records;
  std::vector<int> missing;
  for (int rank = 1; rank < size; ++rank) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now());
    try {
      if (left.count() <= 0 && !store.check(key_of(rank))) throw TimeoutError("");
      std::istringstream in(store.get(key_of(rank), std::max(left, milliseconds(1))));
      records.push_back(decode(in));
      came.push_back(rank);
    } catch (const TimeoutError&) {
      missing.push_back(rank);
    }
  }
  if (!missing.empty()) {
    std::vector<int> here{0};
    here.insert(here.end(), came.begin(), came.end());
    problem = "after " + std::to_string(timeout.count() / 1000) +
              (here.size() == 1 ? " s only rank " : " s only ranks ") + ranges(here) + " of " + std::to_string(size) +
              " joined; missing: " + ranges(missing) +
              ". Are all processes running, with the same SMDP_MASTER_ADDR, SMDP_MASTER_PORT and world size? "
              "SMDP_INIT_TIMEOUT sets how long to wait.";
  }
  return records;
}

}  // namespace

Record describe_self(int rank, const GroupOptions& options, const std::string& nonce, const std::string& doorbell) {
  Record record;
  record.host_name = host_name();
  record.host_key = options.host_id.empty() ? machine_key() : options.host_id;
  if (!options.host_id.empty()) record.host_name = options.host_id;
  record.local_name = "smdp-" + nonce;
  record.doorbell = doorbell;
  record.cores = core_mask();
  record.user = std::to_string(::geteuid());
  record.user_space = namespace_number("user");
  record.world_rank = options.world_rank;
  record.shared = {fingerprint_of(options.secret, options.name), options.algorithm,
                   options.strict ? "strict" : "not strict",
                   options.streams == 0 ? kNotSet : std::to_string(options.streams)};
  if (rank != 0 && !options.master_addr.empty()) record.master_seen = resolve(options.master_addr);
  return record;
}

std::string tag_of_self(int rank, int size, const GroupOptions& options) {
  Members self;
  self.rank = rank;
  self.size = size;
  self.name = options.name;
  self.host_names.resize(static_cast<std::size_t>(size));
  self.host_names[static_cast<std::size_t>(rank)] = options.host_id.empty() ? host_name() : options.host_id;
  if (options.world_rank >= 0) self.world_ranks.assign(static_cast<std::size_t>(size), options.world_rank);
  return self.tag();
}

std::vector<std::string> own_addresses(const GroupOptions& options) {
  if (!options.socket_ifname.empty()) return addresses_of_interfaces(options.socket_ifname);
  const std::string address = options.master_addr.empty() ? "" : route_to(options.master_addr);
  return {address.empty() ? "127.0.0.1" : address};
}

std::vector<std::string> addresses_of_master(const Record& own, const std::vector<Record>& others,
                                             const GroupOptions& options) {
  if (!options.socket_ifname.empty()) return addresses_of_interfaces(options.socket_ifname);
  std::string address = "127.0.0.1";
  for (const Record& other : others) {
    if (other.master_seen.empty()) continue;
    address = other.master_seen;
    if (other.host_key != own.host_key) break;
  }
  // A group without the world's rank 0 may have its own rank 0 on another host than the master's.
  if (options.world_rank > 0 && route_to(address) != address) return own_addresses(options);
  return {address};
}

std::vector<Record> exchange_records(
    Store& store, int rank, int size, Record own, const GroupSetup& options,
    const std::function<void(Record& own, const std::vector<Record>& others)>& complete) {
  std::string roster;
  std::vector<int> came;
  if (rank == 0) {
    std::string problem;
    const std::vector<Record> others = collect(store, size, options.init_timeout, came, problem);
    if (problem.empty()) {
      complete(own, others);
      roster = std::string(kGood) + "\n" + encode(own);
      for (const Record& record : others) roster += encode(record);
    } else {
      roster = std::string(kBad) + "\n" + problem;
    }
    store.set("roster", roster);
  } else {
    store.set(key_of(rank), encode(own));
    try {
      // Rank 0's verdict arrives a little after its own deadline.
      roster = store.get("roster", options.init_timeout + milliseconds(3000));
    } catch (const TimeoutError&) {
      announce_departure(store, rank);
      throw TimeoutError("[smdp] rank " + std::to_string(rank) + " of " + std::to_string(size) + ": rank 0 did not " +
                         "open group " + quoted(options.name, options.purpose) + " within " +
                         std::to_string(options.init_timeout.count() / 1000) + " s. Is it running?");
    }
  }
  std::istringstream in(roster);
  std::string first;
  std::getline(in, first);
  if (first == kBad) {
    std::string reason;
    std::getline(in, reason);
    rank == 0 ? await_departures(store, came, options.interrupted) : announce_departure(store, rank);
    throw TimeoutError("[smdp] rank " + std::to_string(rank) + " of " + std::to_string(size) + ", group " +
                       quoted(options.name, options.purpose) + ": " + reason);
  }
  if (first != kGood)
    throw ConfigError(
        "[smdp] the rendezvous store contains records of a different version of smdp. Install the same version on all "
        "ranks.");
  std::vector<Record> records;
  for (int i = 0; i < size; ++i) records.push_back(decode(in));
  return records;
}

void introduce(const std::vector<Record>& records, Members& members) {
  const bool is_part =
      std::any_of(records.begin(), records.end(), [](const Record& record) { return record.world_rank >= 0; });
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    members.host_names.push_back(records[rank].host_name);
    if (is_part) {
      members.world_ranks.push_back(records[rank].world_rank < 0 ? static_cast<int>(rank) : records[rank].world_rank);
    }
  }
}

void check_shared(Store& store, const std::vector<Record>& records, const Members& members,
                  const std::function<bool()>& interrupted) {
  const bool is_one_host = std::all_of(records.begin(), records.end(), [&](const Record& record) {
    return record.host_key == records.front().host_key;
  });
  for (std::size_t i = 0; i < kShared.size(); ++i) {
    if (is_one_host && std::string(kShared[i]) == "SMDP_STREAMS") continue;  // between hosts only
    const std::string& first = records.front().shared[i];
    const auto other =
        std::find_if(records.begin(), records.end(), [&](const Record& record) { return record.shared[i] != first; });
    if (other == records.end()) continue;
    members.rank == 0 ? await_departures(store, all_but_first(members.size), interrupted)
                      : announce_departure(store, members.rank);
    throw ConfigError(
        members.prefix() + kShared[i] + " is '" + shown(i, first, "a secret") + "' on " + members.who(0) + ", but '" +
        shown(i, other->shared[i], first == kNotSet ? "a secret" : "another secret") + "' on " +
        members.who(static_cast<int>(other - records.begin())) +
        ". It determines how ranks communicate, so set it to the same value in the environment of all ranks.");
  }
}

bool must_move(const std::vector<Record>& records, int rank) {
  const Record& record = records[static_cast<std::size_t>(rank)];
  return record.host_key == records[0].host_key && is_loopback(record.rails[0].address) &&
         !is_loopback(records[0].rails[0].address);
}

std::string encode_rails(const std::vector<Rail>& rails) {
  std::string text;
  for (const Rail& rail : rails) text += rail.address + ' ' + std::to_string(rail.port) + ' ';
  return text;
}

std::vector<Rail> decode_rails(const std::string& text) {
  std::vector<Rail> rails;
  std::istringstream list(text);
  for (Rail rail; list >> rail.address >> rail.port;) rails.push_back(rail);
  if (rails.empty()) throw ConfigError("[smdp] the rendezvous store contains a rank without an address to connect to.");
  return rails;
}

std::vector<std::vector<int>> group_by_host(const std::vector<Record>& records) {
  std::vector<std::vector<int>> hosts;
  std::vector<std::string> keys;
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    std::size_t host = 0;
    while (host < keys.size() && keys[host] != records[rank].host_key) ++host;
    if (host == keys.size()) {
      keys.push_back(records[rank].host_key);
      hosts.emplace_back();
    }
    hosts[host].push_back(static_cast<int>(rank));
  }
  return hosts;
}

}  // namespace smdp
