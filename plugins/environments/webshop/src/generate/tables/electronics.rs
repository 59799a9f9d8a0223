//! Sound, pictures, cables and the like.

use super::{FANCY, PLAIN};
use crate::generate::shop::{Department, Kind};

pub const ELECTRONICS: Department = Department {
    category: "electronics",
    kinds: &[
        Kind {
            path: "Electronics › Portable Audio › Speakers › Bluetooth",
            query: "bluetooth speaker",
            noun: "Bluetooth Speaker",
            dollars: (14, 240),
            attributes: "stereo sound, water proof, long battery life, hands free, usb port, deep bass, \
                wireless pairing, easy to carry, dust proof, voice control",
            options: &[("Color", PLAIN)],
        },
        Kind {
            path: "Electronics › Television & Video › Accessories › Cables",
            query: "hdmi cable",
            noun: "HDMI Cable",
            dollars: (5, 60),
            attributes: "gold plated, high speed, ultra hd, nylon braided, plug and play, male connectors, \
                signal booster, aluminum shell, dolby audio",
            options: &[
                ("Size", "3 feet / 1 m, 6 feet, 10 feet / 3 m, 25 ft, 50 ft"),
                ("Color", "black, grey, white, orange"),
                ("Number of Items", "1-pack, 2-pack, 5-pack"),
            ],
        },
        Kind {
            path: "Electronics › Headphones › Earbuds › Wireless",
            query: "wireless earbuds",
            noun: "Wireless Earbuds",
            dollars: (16, 220),
            attributes: "noise cancelling, touch control, fast charging, sweat proof, stereo sound, charging case, \
                hands free, low latency, deep bass, long battery life",
            options: &[("Color", PLAIN), ("Style", "in ear, semi in ear, ear hook")],
        },
        Kind {
            path: "Electronics › Phones › Accessories › Cases",
            query: "phone case",
            noun: "Phone Case",
            dollars: (6, 48),
            attributes: "wireless charging, heavy duty, tempered glass, shock proof, kick stand, slim fit, \
                card holder, easy to install, scratch resistant, non slip",
            options: &[("Color", FANCY), ("Size", "5.4 inch, 6.1 inch, 6.7 inch")],
        },
        Kind {
            path: "Electronics › Phones › Accessories › Chargers",
            query: "usb wall charger",
            noun: "USB Wall Charger",
            dollars: (8, 70),
            attributes: "fast charging, foldable plug, dual port, overload protection, travel friendly, usb c, \
                led indicator, heat resistant",
            options: &[("Color", "black, white, light blue"), ("Style", "20w, 30w, 65w, 30w + cable")],
        },
        Kind {
            path: "Electronics › Wearables › Accessories › Bands",
            query: "smart watch band",
            noun: "Smart Watch Band",
            dollars: (6, 58),
            attributes: "quick release, stainless steel, sweat proof, soft silicone, adjustable clasp, \
                breathable mesh, easy to adjust, water resistant, hypoallergenic buckle",
            options: &[
                ("Color", FANCY),
                ("Size", "38 | 40 | 41mm s/m, 38 | 40 | 41mm m/l, 42 | 44 | 45mm s/m, 42 | 44 | 45mm m/l"),
            ],
        },
        Kind {
            path: "Electronics › Security › Cameras › Indoor",
            query: "home security camera",
            noun: "Home Security Camera",
            dollars: (22, 260),
            attributes: "night vision, motion detection, two way audio, easy to install, cloud storage, wide angle, \
                1080p hd, pan and tilt, human detection, weather proof",
            options: &[("Color", "black, white"), ("Style", "1 camera, 2 cameras, 4 cameras + hub")],
        },
        Kind {
            path: "Electronics › Computers › Gaming › Headsets",
            query: "gaming headset",
            noun: "Gaming Headset",
            dollars: (19, 190),
            attributes: "noise cancelling, surround sound, memory foam, detachable microphone, volume control, \
                rgb lights, plug and play, long cable, light weight",
            options: &[("Color", PLAIN)],
        },
        Kind {
            path: "Electronics › Television & Video › Projectors › Home",
            query: "home theater projector",
            noun: "Home Theater Projector",
            dollars: (70, 1900),
            attributes: "1080p hd, short throw, built in speakers, wireless mirroring, keystone correction, \
                high contrast, long lamp life, usb port, low noise",
            options: &[("Color", "white, grey, matte black"), ("Style", "projector, projector + 100 inch screen")],
        },
    ],
};
