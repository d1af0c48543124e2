// What tells one device from another, whatever index each process knows it by. Empty where nothing does (CPU).
#pragma once

#include <string>

namespace mantissa {

struct DeviceIdentity {
  std::string uuid;        // "5fb0aa26-7a4d-...": differs from machine to machine; empty where the driver gives none
  std::string pci_bus_id;  // "0000:01:00.0": of one machine. Slices of one GPU (MIG) have the same
};

}  // namespace mantissa
