#include "observability/trace.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>
#include <utility>

#include "common/log.h"
#include "common/mutex.h"
#include "common/per_process.h"
#include "common/shortage.h"
#include "smdp/error.h"

namespace smdp::trace {
namespace {

constexpr std::size_t kFlushBytes = std::size_t{64} << 10;
constexpr std::chrono::seconds kFlushTime{1};  // while events arrive, a killed rank loses at most one second of them
constexpr std::size_t kMostBytes = std::size_t{256} << 20;  // of one file

std::atomic<bool> on{false};
std::atomic<std::size_t> limit{kMostBytes};

// Machines with the same boot id share the clock.
std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

class File {
 public:
  void open(const std::string& directory, int rank, int size, const std::string& host) {
    Lock lock(mutex_);
    if (descriptor_ >= 0) return;
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    const std::string path = directory + "/rank" + std::to_string(rank) + "-" + std::to_string(::getpid()) + ".json";
    descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (descriptor_ < 0) {
      if (errno != EACCES && errno != EPERM) throw_if_short("open", path);
      throw ConfigError("[smdp] SMDP_TRACE is '" + directory + "', and " + path +
                        " cannot be written: " + std::strerror(errno) + ". Choose a directory that is writable.");
    }
    rank_ = std::to_string(rank);
    // The array is never closed: viewers accept that, and so a killed process leaves a valid file.
    pending_ = "[\n";
    metadata("process_name", "0", "{\"name\":" + quoted("rank " + rank_ + " (" + host + ")") + "}");
    metadata("process_sort_index", "0", "{\"sort_index\":" + rank_ + "}");
    metadata("smdp", "0",
             "{\"rank\":" + rank_ + ",\"size\":" + std::to_string(size) + ",\"host\":" + quoted(host) +
                 ",\"clock\":" + quoted(boot_id()) + "}");
    write_pending();
    if (!is_full_) on.store(true);
    const std::string trouble = take_trouble();
    lock.unlock();
    tell(trouble);
  }

  void span(const std::string& track, const std::string& category, const std::string& name, TimePoint begin,
            TimePoint end, const Arguments& arguments) {
    Lock lock(mutex_);
    if (descriptor_ < 0 || is_full_) return;
    is_finished_ = false;
    const std::string thread = number_of(track);
    pending_ += R"({"ph":"X","pid":)" + rank_ + R"(,"tid":)" + thread + R"(,"cat":)" + quoted(category) +
                R"(,"name":)" + quoted(name) + R"(,"ts":)" + microseconds(begin.time_since_epoch()) + R"(,"dur":)" +
                microseconds(end - begin) + R"(,"args":{)";
    const char* comma = "";
    for (const auto& [key, value] : arguments) {
      pending_ += comma + quoted(key) + ":" + value;
      comma = ",";
    }
    pending_ += "}},\n";
    const std::size_t most = limit.load(std::memory_order_relaxed);
    if (written_ + pending_.size() >= most) fill_up(end, most);
    if (pending_.size() >= kFlushBytes || is_full_ || end - flushed_ >= kFlushTime) {
      write_pending();
      flushed_ = end;
      const std::string trouble = take_trouble();
      lock.unlock();
      tell(trouble);
    }
  }

  // `smdp trace` considers a file cut off if its last event is a different one.
  void finish() {
    Lock lock(mutex_);
    if (descriptor_ < 0 || is_full_ || is_finished_) return;
    mark("trace ends", TimePoint::clock::now(), "{}");
    write_pending();
    is_finished_ = true;
    const std::string trouble = take_trouble();
    lock.unlock();
    tell(trouble);
  }

 private:
  static std::string microseconds(std::chrono::nanoseconds time) {
    std::array<char, 40> text{};
    std::snprintf(text.data(), text.size(), "%lld.%03lld", static_cast<long long>(time.count() / 1000),
                  static_cast<long long>(time.count() % 1000));
    return text.data();
  }

  void metadata(const std::string& name, const std::string& thread, const std::string& arguments)
      SMDP_REQUIRES(mutex_) {
    pending_ += R"({"ph":"M","pid":)" + rank_ + R"(,"tid":)" + thread + R"(,"name":)" + quoted(name) + R"(,"args":)" +
                arguments + "},\n";
  }

  // `smdp trace` warns about it.
  void fill_up(TimePoint now, std::size_t most) SMDP_REQUIRES(mutex_) {
    is_full_ = true;
    on.store(false);
    mark("trace is full", now, R"({"limit_bytes":)" + std::to_string(most) + "}");
  }

  void mark(const std::string& name, TimePoint now, const std::string& arguments) SMDP_REQUIRES(mutex_) {
    pending_ += R"({"ph":"i","s":"p","pid":)" + rank_ + R"(,"tid":0,"cat":"smdp","name":)" + quoted(name) +
                R"(,"ts":)" + microseconds(now.time_since_epoch()) + R"(,"args":)" + arguments + "},\n";
  }

  std::string number_of(const std::string& track) SMDP_REQUIRES(mutex_) {
    const auto [found, is_new] = tracks_.try_emplace(track, tracks_.size() + 1);
    const std::string number = std::to_string(found->second);
    if (is_new) metadata("thread_name", number, "{\"name\":" + quoted(track) + "}");
    return number;
  }

  // Returns the text for tell(), which is called once the mutex is free, because no lock is taken under it.
  std::string take_trouble() SMDP_REQUIRES(mutex_) { return std::exchange(trouble_, {}); }
  static void tell(const std::string& trouble) {
    if (!trouble.empty()) log(LogLevel::kWarning, trouble);
  }

  // A full disk ends the trace, not the training.
  void write_pending() SMDP_REQUIRES(mutex_) {
    std::size_t done = 0;
    while (done < pending_.size()) {
      const ssize_t wrote = ::write(descriptor_, pending_.data() + done, pending_.size() - done);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) {
        trouble_ = "rank " + rank_ + ": the trace cannot be written (" + std::strerror(errno) +
                   ") and ends here. The job continues.";
        is_full_ = true;
        on.store(false);
        break;
      }
      done += static_cast<std::size_t>(wrote);
    }
    written_ += pending_.size();
    pending_.clear();
  }

  Mutex mutex_;  // no other lock is taken under it
  int descriptor_ SMDP_GUARDED_BY(mutex_) = -1;
  std::string rank_ SMDP_GUARDED_BY(mutex_);
  std::string pending_ SMDP_GUARDED_BY(mutex_);
  std::size_t written_ SMDP_GUARDED_BY(mutex_) = 0;
  TimePoint flushed_ SMDP_GUARDED_BY(mutex_){};
  bool is_full_ SMDP_GUARDED_BY(mutex_) = false;
  bool is_finished_ SMDP_GUARDED_BY(mutex_) = false;
  std::string trouble_ SMDP_GUARDED_BY(mutex_);  // not reported yet
  std::map<std::string, std::size_t> tracks_ SMDP_GUARDED_BY(mutex_);
};

// A forked child does not use its parent's file: it opens its own, or has none.
File& file() { return per_process<File>(); }

}  // namespace

void open(const std::string& directory, int rank, int size, const std::string& host) {
  file().open(directory, rank, size, host);
}

void finish() {
  if (is_on()) file().finish();
}

bool is_on() { return on.load(std::memory_order_relaxed); }

void set_limit(std::size_t bytes) { limit.store(bytes, std::memory_order_relaxed); }

void span(const std::string& track, const std::string& category, const std::string& name, TimePoint begin,
          TimePoint end, const Arguments& arguments) {
  if (is_on()) file().span(track, category, name, begin, end, arguments);
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      result += ' ';
    } else {
      result += c;
    }
  }
  return result + '"';
}

}  // namespace smdp::trace
