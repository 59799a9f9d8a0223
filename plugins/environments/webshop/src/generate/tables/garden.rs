//! Home and garden.

use super::PLAIN;
use crate::generate::shop::{Department, Kind};

pub const GARDEN: Department = Department {
    category: "garden",
    kinds: &[
        Kind {
            path: "Home & Garden › Lighting › Lamps › Table",
            query: "table lamp",
            noun: "Table Lamp",
            dollars: (17, 190),
            attributes: "living room, wood finish, energy efficient, linen shade, usb port, touch control, \
                assembly required, bronze finish, dimmable light, ceramic base",
            options: &[("Color", PLAIN), ("Size", "12 inch, 18 inch, 24 inch (set of 2)")],
        },
        Kind {
            path: "Home & Garden › Rugs & Floors › Rugs › Area",
            query: "area rugs",
            noun: "Area Rug",
            dollars: (20, 640),
            attributes: "stain resistant, living room, easy to clean, non shedding, machine washable, low pile, \
                dining room, hand woven, spot clean, pet friendly",
            options: &[
                ("Color", "ivory/blue, grey | cream, red/multi, navy/ivory, black/white, natural jute"),
                ("Size", "2 ft x 3 ft, 3'3\" x 5', 5 ft 3 in x 7 ft 7 in, 8' x 10', 6 ft round"),
            ],
        },
        Kind {
            path: "Home & Garden › Decor › Pillows › Covers",
            query: "throw pillow covers",
            noun: "Throw Pillow Covers",
            dollars: (8, 52),
            attributes: "super soft, machine washable, living room, double sided, hidden zipper, faux linen, \
                exquisite workmanship, lumbar support",
            options: &[("Color", PLAIN), ("Size", "12 in x 20 in, 18 inch x 18 inch, 20 x 20-inch, 26\"x26\"")],
        },
        Kind {
            path: "Home & Garden › Bath › Accessories › Shower Curtains",
            query: "shower curtain",
            noun: "Shower Curtain",
            dollars: (9, 58),
            attributes: "machine washable, water repellent, printing technology, rust proof grommets, \
                mildew resistant, polyester fabric, weighted hem, quick drying",
            options: &[
                ("Color", "ocean, forest, city skyline, white marble, yellow flowers"),
                ("Size", "36\"w x 72\"h, 60\"w by 72\"l, 72 x 84"),
            ],
        },
        Kind {
            path: "Home & Garden › Furniture › Office › Chairs",
            query: "home office chair",
            noun: "Home Office Chair",
            dollars: (65, 1200),
            attributes: "lumbar support, height adjustable, easy to assemble, pu leather, heavy duty, breathable mesh, \
                swivel seat, padded arms, high density foam, steel frame",
            options: &[("Color", PLAIN), ("Style", "no arms, flip up arms, with footrest")],
        },
        Kind {
            path: "Home & Garden › Furniture › Living Room › Ottomans",
            query: "storage ottoman",
            noun: "Storage Ottoman",
            dollars: (28, 240),
            attributes: "storage space, button tufted, faux leather, solid wood, easy to assemble, living room, \
                non slip feet, hinged lid, high density foam",
            options: &[("Color", PLAIN), ("Size", "15 inches, 30 inches, 43 x 15 inches")],
        },
        Kind {
            path: "Home & Garden › Bedding › Sheets › Sets",
            query: "bed sheets",
            noun: "Bed Sheet Set",
            dollars: (18, 160),
            attributes: "deep pocket, fade resistant, machine washable, super soft, easy care, cotton percale, \
                cooling fabric, wrinkle free, elastic corners",
            options: &[("Color", PLAIN), ("Size", "twin, full, queen, king, california king, split king / 5 pieces")],
        },
        Kind {
            path: "Home & Garden › Furniture › Living Room › Sofas",
            query: "sectional sofa",
            noun: "Sectional Sofa",
            dollars: (320, 2600),
            attributes: "living room, high density foam, solid wood, mid century, easy to assemble, storage space, \
                spill resistant, reversible chaise, button tufted, steel frame",
            options: &[
                ("Color", "light grey, dark brown, navy velvet, beige linen, black faux leather"),
                ("Size", "2 seats, 3 seats, l-shape"),
            ],
        },
        Kind {
            path: "Home & Garden › Outdoor › Planting › Pots",
            query: "indoor plant pots",
            noun: "Indoor Plant Pots",
            dollars: (9, 88),
            attributes: "drainage hole, hand painted, ceramic glaze, self watering, mid century, uv resistant, \
                saucer included, eco friendly, light weight",
            options: &[
                ("Color", "white, terracotta, speckled grey, matte black, teal"),
                ("Size", "4 inch, 6 inch, 8 inch, 4+6+8 inch"),
            ],
        },
        Kind {
            path: "Home & Garden › Decor › Windows › Curtains",
            query: "blackout curtains",
            noun: "Blackout Curtains",
            dollars: (15, 120),
            attributes: "energy efficient, noise reducing, machine washable, rod pocket, living room, \
                thermal insulated, wrinkle resistant, triple weave, exquisite workmanship",
            options: &[("Color", PLAIN), ("Size", "42w x 63l, 52\"w x 84\"l, 52 x 95 inch, standard")],
        },
        Kind {
            path: "Home & Garden › Decor › Walls › Art",
            query: "canvas wall art",
            noun: "Canvas Wall Art",
            dollars: (14, 310),
            attributes: "ready to hang, solid wood frame, living room, hand painted, fade resistant, dining room, \
                wall mounted, gallery wrapped",
            options: &[
                ("Style", "unframed, black frame, oak frame, gold frame"),
                ("Size", "12\" x 16\", 16\" x 24\" x 3 panels, 60 x 30cm"),
            ],
        },
    ],
};
