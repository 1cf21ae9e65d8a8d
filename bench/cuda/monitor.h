// The SM clock and the power of the device while something runs, as NVIDIA's management library tells them.
#pragma once

#include <memory>
#include <string>

namespace halfbyte::bench {

struct Conditions {
    double sm_mhz = 0, watts = 0;  // medians; 0: not known
};

class Monitor {
  public:
    explicit Monitor(int device);
    ~Monitor();
    Monitor(const Monitor&) = delete;
    Monitor& operator=(const Monitor&) = delete;

    // Why nothing is known; empty if the library was found.
    const std::string& reason() const { return reason_; }
    // Samples are taken from begin() to end().
    void begin();
    Conditions end();

  private:
    struct State;
    std::string reason_;
    std::unique_ptr<State> state_;
};

}  // namespace halfbyte::bench
