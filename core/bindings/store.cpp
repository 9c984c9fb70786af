#include "smdp/store.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "bind.h"
#include "interruption.h"
#include "released.h"
#include "smdp/error.h"
#include "smdp/tcp_store.h"

namespace nb = nanobind;

namespace smdp {
namespace {

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<long long>(seconds * 1000));
}

nb::bytes to_bytes(const std::string& text) { return nb::bytes(text.data(), text.size()); }

constexpr std::chrono::microseconds kShortestPause{200};
constexpr std::chrono::microseconds kLongestPause{50'000};

// A Python object with torch's store interface. Used only while a group is made.
class PythonStore final : public Store {
 public:
  explicit PythonStore(nb::object store) : store_(std::move(store)) {}
  ~PythonStore() override {
    if (!nb::is_alive()) {
      store_.release();
      return;
    }
    const nb::gil_scoped_acquire gil;
    store_.reset();
  }

  void set(const std::string& key, const std::string& value) override {
    const nb::gil_scoped_acquire gil;
    guarded([&] { store_.attr("set")(key, to_bytes(value)); });
  }

  // Polls the key: waiting in torch's stores blocks Python's signals, and each timeout there logs a warning.
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    for (auto pause = kShortestPause; !check(key); pause = std::min(pause * 3 / 2, kLongestPause)) {
      if (std::chrono::steady_clock::now() >= deadline) {
        throw TimeoutError("[smdp] the rendezvous store has no key '" + key + "' after " +
                           std::to_string(timeout.count()) + " ms.");
      }
      std::this_thread::sleep_for(pause);
      if (is_interrupted()) throw ClosedError("[smdp] the wait for the rendezvous store was interrupted.");
    }
    const nb::gil_scoped_acquire gil;
    std::string value;
    guarded([&] {
      const auto bytes = nb::cast<nb::bytes>(store_.attr("get")(key));
      value.assign(bytes.c_str(), bytes.size());
    });
    return value;
  }

  bool check(const std::string& key) override {
    const nb::gil_scoped_acquire gil;
    bool found = false;
    guarded([&] {
      nb::list keys;
      keys.append(key);
      found = nb::cast<bool>(store_.attr("check")(keys));
    });
    return found;
  }

 private:
  // KeyboardInterrupt, SystemExit and similar exceptions do not come from the store.
  static bool is_of_a_signal(const nb::python_error& error) { return !error.matches(PyExc_Exception); }

  template <class Work>
  static void guarded(Work work) {
    try {
      work();
    } catch (nb::python_error& error) {
      if (is_of_a_signal(error)) {
        error.restore();
        throw ClosedError("[smdp] the wait for the rendezvous store was interrupted.");
      }
      const nb::object name = error.type().attr("__name__");  // what() would contain the whole traceback
      throw Error(std::string("[smdp] the rendezvous store failed: ") + nb::str(name).c_str() + ": " +
                  nb::str(error.value()).c_str());
    }
  }

  nb::object store_;
};

}  // namespace

void bind_store(nb::module_& m) {
  nb::class_<Store>(m, "Store", "Key-value store through which the ranks of a group find each other.")
      .def(
          "set",
          [](Store& store, const std::string& key, const nb::bytes& value) {
            const std::string text(value.c_str(), value.size());
            const Released release;
            store.set(key, text);
          },
          nb::arg("key"), nb::arg("value"))
      .def(
          "get",
          [](Store& store, const std::string& key, double timeout) {
            std::string value;
            {
              const Released release;
              value = store.get_unless(key, milliseconds(timeout), is_interrupted);
            }
            return to_bytes(value);
          },
          nb::arg("key"), nb::arg("timeout"), "Waits at most `timeout` seconds for the key and returns its value.")
      .def("check", &Store::check, nb::arg("key"), nb::call_guard<Released>());
  nb::class_<TcpStore, Store>(m, "TcpStore").def_prop_ro("port", &TcpStore::port);
  m.def(
      "tcp_store",
      [](const std::string& host, int port, bool is_server, const nb::bytes& secret, double timeout) {
        if (port < 0 || port > 65535) {
          throw ConfigError("[smdp] the port of the rendezvous store is " + std::to_string(port) +
                            "; allowed: 1 to 65535.");
        }
        const std::string key(secret.c_str(), secret.size());
        const Released release;
        return std::make_shared<TcpStore>(host, static_cast<std::uint16_t>(port), is_server, key, milliseconds(timeout),
                                          is_interrupted);
      },
      nb::arg("host"), nb::arg("port"), nb::arg("is_server"), nb::arg("secret"), nb::arg("timeout"),
      "Returns a store over TCP, which rank 0 serves (port 0 takes a free port).");
  m.def("memory_store", &make_memory_store, "Returns a store for ranks that are threads of this process.");
  m.def(
      "prefix_store",
      [](std::string prefix, std::shared_ptr<Store> store) {
        return make_prefix_store(std::move(prefix), std::move(store));
      },
      nb::arg("prefix"), nb::arg("store"));
  m.def(
      "python_store",
      [](nb::object store) -> std::shared_ptr<Store> { return std::make_shared<PythonStore>(std::move(store)); },
      nb::arg("store"), "Wraps an object with torch's store interface: set, get, check.");
}

}  // namespace smdp
